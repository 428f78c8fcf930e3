"""The results file. The only place that imports duckdb."""
