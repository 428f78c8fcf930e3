"""One decode loop, and the small policies that make a decoder out of it. Importing this package does not import torch."""
