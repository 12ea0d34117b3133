"""The page on which a design is drawn, predicted, launched and compared."""
