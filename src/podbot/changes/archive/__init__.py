"""A change set as a tarball, and back: `saving` writes one, `loading` reads a hostile one."""
