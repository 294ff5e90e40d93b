"""From nouns to rows: the only place where FLOPs and bytes are counted."""
