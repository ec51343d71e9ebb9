"""gRPC over HTTP/2, server side, made for streams that are short and many (RFC 9113, gRPC over HTTP2).

Bytes in, events out; calls in, bytes out: `connection.py`, which opens no socket and reads no clock, with the calls on
it in `open_streams.py`. `protocol.py` puts it on asyncio, `server.py` listens, and `servicers.py` runs services that
were written for grpcio.
"""
