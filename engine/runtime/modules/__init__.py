"""Building blocks of models: modules whose weight gradients can be deferred, tensor-parallel modules."""
