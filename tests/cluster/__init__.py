"""Tests on a Ray cluster of two nodes on this machine: `make test-cluster`, which installs Ray."""
