"""Used by all packages: errors, stop requests, retries, progress, process control, and formatting of numbers."""
