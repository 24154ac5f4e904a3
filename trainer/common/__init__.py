"""What every room uses: errors, stopping, waiting, progress, and how numbers are told."""
