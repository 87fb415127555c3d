"""The Kubernetes API: client, errors, kinds, lease; knows no job."""
