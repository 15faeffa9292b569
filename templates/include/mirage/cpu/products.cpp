// Products that kernels of a library share (`shared_products` in quantised.hpp), those of the operands MIRAGE_SHARED.
#include "mirage/cpu/tile.hpp"

template void mirage::shared_products(mirage::Result, int, int, int, MIRAGE_SHARED);
