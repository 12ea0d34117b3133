"""Building blocks of models: modules whose weight gradients can be deferred, and tensor-parallel modules."""
