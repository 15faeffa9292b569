"""What a tensor program means: graphs, named-axis programs, operators, domains. Needs numpy only."""
