"""How fast the simulator is: `python -m pytest benchmarks`; with `--large` also 200,000 and a million requests."""
