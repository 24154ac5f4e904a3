"""Job schemas, reading of jobs from YAML files and the command line, and messages about invalid values."""
