"""The manifests of deploy/kubernetes, rendered by kubectl and validated: ``make test-kubernetes``."""
