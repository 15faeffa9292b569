"""The farm: jobs made by the workers of a Dask scheduler. Knows no jobs and no models; what Dask needs is imported when it is
used."""
