"""`tlserve chat`: a conversation in the terminal."""
