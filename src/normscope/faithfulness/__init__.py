"""Which method to trust: perturbation metrics, evidence metrics, agreement between methods."""
