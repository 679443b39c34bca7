"""What a service is installed from: its locks, licenses and advisories (`make audit`)."""
