"""How a worker calls the store: replies come by callback, an outage is noticed once, times are the store's."""
