"""What each kind of job brings to the one training loop: data in its order, a model, a loss and a measure."""
