"""Facts about the world, each with source and date, and how they are opened."""
