"""What follows what: each pipeline is a plain function, which asks `do` for the artifact of one step after another."""
