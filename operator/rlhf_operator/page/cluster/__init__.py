"""The page of a cluster: jobs as the viewer's own token may read them."""
