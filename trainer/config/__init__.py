"""The schemas of jobs, their YAML files, and what is said of bad values."""
