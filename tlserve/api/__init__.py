"""What the families of endpoints share: bodies read by tables of fields, the types of requests and answers, and errors."""
