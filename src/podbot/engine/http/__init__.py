"""How an engine is spoken to: connections, one exchange, streams, TLS; knows no container."""
