"""HTTP, frames and stores between processes."""
