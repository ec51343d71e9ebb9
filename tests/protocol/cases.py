"""Scripts: (time, event in, actions out)."""

from picker.extproc.actions import (
    Answered,
    Finish,
    FirstByte,
    Ignored,
    Pick,
    Release,
    SendBodyContinue,
    SendBodyPick,
    SendBodyPiece,
    SendExtension,
    SendHeadersContinue,
    SendHeadersPick,
    SendRefusal,
    SendResponseBodyContinue,
    SendResponseBodyPiece,
    SendResponseHeadersContinue,
    SendResponseTrailersContinue,
    SendTrailersContinue,
    StartTimer,
)
from picker.extproc.events import (
    BodyMode,
    Closed,
    Cut,
    DeadlinePassed,
    Event,
    NoRoom,
    NotPicked,
    NotYet,
    Picked,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)

POST = {":method": "POST", ":path": "/v1/chat/completions"}
GET = {":method": "GET", ":path": "/v1/models"}
WEBSOCKET = GET | {"connection": "upgrade", "upgrade": "websocket"}
H2C = POST | {"upgrade": "h2c", "content-length": "2"}
TWO = ("10.0.0.1:8000", "10.0.0.2:8000")
FULL = BodyMode.FULL_DUPLEX
BIG = bytes(100_000)
BUSY = "Too many request bytes are waiting. Please try again later."

Script = list[tuple[float, Event, list[object]]]

CASES: dict[str, Script] = {
    "a buffered request is picked when its body is there, and released when the stream ends": [
        (0.0, RequestHeaders(POST), [StartTimer(30.0), SendHeadersContinue()]),
        (0.1, RequestBody(b"{}"), [StartTimer(None), Pick(POST, b"{}")]),
        (0.2, Picked(TWO, "p"), [StartTimer(3600.2), SendBodyPick(TWO)]),
        (0.5, ResponseHeaders(200, TWO[0]), [FirstByte("p", 200, TWO[0]), SendResponseHeadersContinue("", TWO[0])]),
        (0.9, ResponseTrailers(), [SendResponseTrailersContinue()]),
        (0.9, Closed(), [StartTimer(None), Release("p")]),
    ],
    "a buffered body is whole though trailers follow it, which Envoy may or may not send": [
        (0.0, RequestHeaders(POST), [StartTimer(30.0), SendHeadersContinue()]),
        (0.1, RequestBody(b"{}", end_of_stream=False), [StartTimer(None), Pick(POST, b"{}")]),
        (0.2, Picked(TWO, "p"), [StartTimer(3600.2), SendBodyPick(TWO)]),
        (0.3, RequestTrailers(), [SendTrailersContinue()]),
        (0.9, Closed(), [StartTimer(None), Release("p")]),
    ],
    "a request without a body is picked on its headers": [
        (0.0, RequestHeaders(GET, end_of_stream=True), [Pick(GET, b"")]),
        (0.1, Picked(TWO, "p"), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (0.2, Closed(), [StartTimer(None), Release("p")]),
    ],
    "in mode NONE the pick is made on the headers": [
        (0.0, RequestHeaders(POST, request_mode=BodyMode.NONE), [Pick(POST, b"")]),
        (0.1, Picked(TWO, "p"), [StartTimer(3600.1), SendHeadersPick(TWO)]),
    ],
    "a full-duplex body is held, and handed back after the headers": [
        (0.0, RequestHeaders(POST, request_mode=FULL), [StartTimer(30.0)]),
        (0.1, RequestBody(b'{"a', end_of_stream=False), []),
        (0.2, RequestBody(b'":1}', end_of_stream=False), []),
        (0.3, RequestBody(b"", end_of_stream=True), [StartTimer(None), Pick(POST, b'{"a":1}')]),
        (0.4, Picked(TWO, "p"), [StartTimer(3600.4), SendHeadersPick(TWO), SendBodyPiece(b'{"a":1}', True)]),
        (0.9, Closed(), [StartTimer(None), Release("p")]),
    ],
    "a large full-duplex body goes back in pieces of at most 62,000 bytes": [
        (0.0, RequestHeaders(POST, request_mode=FULL), [StartTimer(30.0)]),
        (0.1, RequestBody(BIG), [StartTimer(None), Pick(POST, BIG)]),
        (0.2, Picked(TWO), [
            StartTimer(3600.2),
            SendHeadersPick(TWO), SendBodyPiece(BIG[:62_000], False), SendBodyPiece(BIG[62_000:], True),
        ]),
    ],
    "trailers end a full-duplex body that had no last piece": [
        (0.0, RequestHeaders(POST, request_mode=FULL), [StartTimer(30.0)]),
        (0.1, RequestBody(b"{}", end_of_stream=False), []),
        (0.2, RequestTrailers(), [StartTimer(None), Pick(POST, b"{}")]),
        (
            0.3,
            Picked(TWO),
            [StartTimer(3600.3), SendHeadersPick(TWO), SendBodyPiece(b"{}", False), SendTrailersContinue()],
        ),
    ],
    "body after its end is ignored": [
        (0.0, RequestHeaders(POST, request_mode=FULL), [StartTimer(30.0)]),
        (0.1, RequestBody(b"{}"), [StartTimer(None), Pick(POST, b"{}")]),
        (0.2, RequestBody(b"{}"), [Ignored(RequestBody, "PICK")]),
        (0.3, Picked(TWO), [StartTimer(3600.3), SendHeadersPick(TWO), SendBodyPiece(b"{}", True)]),
        (0.4, RequestBody(b"{}"), [Ignored(RequestBody, "RESPONSE")]),
    ],
    "streamed pieces are answered one by one once the pick is made": [
        (0.0, RequestHeaders(POST, request_mode=BodyMode.STREAMED, body_comes_unasked=True), [StartTimer(30.0)]),
        (0.1, RequestBody(b"{", end_of_stream=False), []),
        (0.2, RequestBody(b"}"), [StartTimer(None), Pick(POST, b"{}")]),
        (0.3, Picked(TWO), [StartTimer(3600.3), SendHeadersPick(TWO), SendBodyContinue(), SendBodyContinue()]),
    ],
    "streamed mode that waits for the headers' answer is picked on the headers": [
        (0.0, RequestHeaders(POST, request_mode=BodyMode.STREAMED), [Pick(POST, b"")]),
        (0.1, Picked(TWO), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (0.2, RequestBody(b"{}"), [SendBodyContinue()]),
    ],
    "a partial body is picked on what is there": [
        (0.0, RequestHeaders(POST, request_mode=BodyMode.BUFFERED_PARTIAL), [StartTimer(30.0), SendHeadersContinue()]),
        (0.1, RequestBody(b'{"mo', end_of_stream=False), [StartTimer(None), Pick(POST, b'{"mo', is_whole=False)]),
        (0.2, Picked(TWO), [StartTimer(3600.2), SendBodyPick(TWO)]),
    ],
    "an upgrade is picked on its headers, and its bytes pass": [
        (0.0, RequestHeaders(WEBSOCKET, request_mode=FULL), [Pick(WEBSOCKET, b"")]),
        (0.1, RequestBody(b"early", end_of_stream=False), []),
        (0.2, Picked(TWO), [StartTimer(3600.2), SendHeadersPick(TWO), SendBodyPiece(b"early", False)]),
        (0.3, RequestBody(b"later", end_of_stream=False), [SendBodyPiece(b"later", False)]),
    ],
    "an offer to upgrade to h2c is an ordinary request": [
        (0.0, RequestHeaders(H2C), [StartTimer(30.0), SendHeadersContinue()]),
        (0.1, RequestBody(b"{}"), [StartTimer(None), Pick(H2C, b"{}")]),
    ],
    "the proxy's restriction goes with the request": [
        (0.0, RequestHeaders(GET, True, subset=frozenset(TWO)), [Pick(GET, b"", subset=frozenset(TWO))]),
    ],
    "a body that never ends is refused in time": [
        (0.0, RequestHeaders(POST, request_mode=FULL), [StartTimer(30.0)]),
        (0.1, RequestBody(b"{", end_of_stream=False), []),
        (30.0, DeadlinePassed(), [
            StartTimer(None), SendRefusal(408, "body-late", "The request body did not arrive in time."), Finish(),
        ]),
        (30.1, RequestBody(b"}"), [Ignored(RequestBody, "ENDED")]),
    ],
    "a body that cannot be held is refused before it is whole": [
        (0.0, RequestHeaders(POST), [StartTimer(30.0), SendHeadersContinue()]),
        (0.1, NoRoom(), [
            StartTimer(None), SendRefusal(429, "picker-busy", BUSY, retry_after_s=1), Finish(),
        ]),
        (0.2, RequestBody(b"}"), [Ignored(RequestBody, "ENDED")]),
    ],
    "nor can what an upgraded connection sends while its pick is made": [
        (0.0, RequestHeaders(WEBSOCKET, request_mode=FULL), [Pick(WEBSOCKET, b"")]),
        (0.1, NoRoom(), [StartTimer(None), SendRefusal(429, "picker-busy", BUSY, retry_after_s=1), Finish()]),
        (0.2, Picked(TWO, "p"), [Release("p")]),
    ],
    "a body over the limit is refused": [
        (0.0, RequestHeaders(POST, request_mode=FULL), [StartTimer(30.0)]),
        (0.1, RequestBody(bytes(1 << 20), end_of_stream=False), []),
        (0.2, RequestBody(b"x"), [
            StartTimer(None), SendRefusal(413, "body-too-large", "The request body is too large."), Finish(),
        ]),
    ],
    "what nobody may serve is refused": [
        (0.0, RequestHeaders(GET, True), [Pick(GET, b"")]),
        (0.1, NotPicked(503, "no-workers", "None."), [
            StartTimer(None), SendRefusal(503, "no-workers", "None."), Finish(),
        ]),
        (0.2, Closed(), [Ignored(Closed, "ENDED")]),
    ],
    "a pick that takes a while asks Envoy for as long, where Envoy has a timeout": [
        (0.0, RequestHeaders(POST), [StartTimer(30.0), SendHeadersContinue()]),
        (0.1, RequestBody(b"{}"), [StartTimer(None), Pick(POST, b"{}")]),
        (0.1, NotYet(), [SendExtension(35.0)]),
        (9.0, Picked(TWO, "p"), [StartTimer(3609.0), SendBodyPick(TWO)]),
        (9.1, Closed(), [StartTimer(None), Release("p")]),
    ],
    "in full duplex it has none": [
        (0.0, RequestHeaders(POST, request_mode=FULL), [StartTimer(30.0)]),
        (0.1, RequestBody(b"{}"), [StartTimer(None), Pick(POST, b"{}")]),
        (0.1, NotYet(), []),
        (9.0, NotPicked(429, "queue-timeout", "Later.", 7), [
            StartTimer(None), SendRefusal(429, "queue-timeout", "Later.", retry_after_s=7), Finish(),
        ]),
    ],
    "the tenant that the proxy names goes with the request": [
        (0.0, RequestHeaders(GET, True, tenant="gold"), [Pick(GET, b"", tenant="gold")]),
    ],
    "a pick that comes after the client has left is released at once": [
        (0.0, RequestHeaders(GET, True), [Pick(GET, b"")]),
        (0.1, Closed(), [StartTimer(None)]),
        (0.2, Picked(TWO, "p"), [Release("p")]),
    ],
    "Envoy may answer by itself before the request is over": [
        (0.0, RequestHeaders(POST), [StartTimer(30.0), SendHeadersContinue()]),
        (0.1, ResponseHeaders(413), [StartTimer(None), SendResponseHeadersContinue()]),
        (0.2, Closed(), [StartTimer(None)]),
    ],
    "Envoy may answer by itself while a pick is made": [
        (0.0, RequestHeaders(GET, True), [Pick(GET, b"")]),
        (0.1, ResponseHeaders(504), [StartTimer(None), SendResponseHeadersContinue()]),
        (0.2, Picked(TWO, "p"), [Release("p")]),
        (0.3, Closed(), [StartTimer(None)]),
    ],
    "without knowledge of the fleet the choice is left to Envoy": [
        (0.0, RequestHeaders(GET, True), [Pick(GET, b"")]),
        (0.1, Picked(()), [StartTimer(3600.1), SendHeadersPick(())]),
        (0.2, ResponseHeaders(200), [SendResponseHeadersContinue()]),
        (0.3, Closed(), [StartTimer(None)]),
    ],
    "a rewritten body replaces the one that came": [
        (0.0, RequestHeaders(POST), [StartTimer(30.0), SendHeadersContinue()]),
        (0.1, RequestBody(b"{}"), [StartTimer(None), Pick(POST, b"{}")]),
        (0.2, Picked(TWO, new_body=b"[1]"), [StartTimer(3600.2), SendBodyPick(TWO, b"[1]")]),
    ],
    "a rewritten body in full duplex goes back instead": [
        (0.0, RequestHeaders(POST, request_mode=FULL), [StartTimer(30.0)]),
        (0.1, RequestBody(b"{", False), []),
        (0.1, RequestBody(b"}"), [StartTimer(None), Pick(POST, b"{}")]),
        (0.2, Picked(TWO, new_body=b"[1]"), [StartTimer(3600.2), SendHeadersPick(TWO), SendBodyPiece(b"[1]", True)]),
    ],
    "a rewritten body in streamed mode goes with the first piece": [
        (0.0, RequestHeaders(POST, request_mode=BodyMode.STREAMED, body_comes_unasked=True), [StartTimer(30.0)]),
        (0.1, RequestBody(b"{", False), []),
        (0.1, RequestBody(b"}"), [StartTimer(None), Pick(POST, b"{}")]),
        (0.2, Picked(TWO, new_body=b"[1]"), [
            StartTimer(3600.2), SendHeadersPick(TWO), SendBodyContinue(b"[1]"), SendBodyContinue(b""),
        ]),
    ],
    "a request gives way to another until its response begins": [
        (0.0, RequestHeaders(GET, True), [Pick(GET, b"")]),
        (0.1, Picked(TWO, "p"), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (0.2, Cut(NotPicked(429, "preempted", "Later.", 2)), [
            Release("p"), StartTimer(None), SendRefusal(429, "preempted", "Later.", GET, 2), Finish(),
        ]),
        (0.3, Closed(), [Ignored(Closed, "ENDED")]),
    ],
    "a response that has begun is not cut": [
        (0.0, RequestHeaders(GET, True), [Pick(GET, b"")]),
        (0.1, Picked(TWO, "p"), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (0.2, ResponseHeaders(200), [FirstByte("p", 200, ""), SendResponseHeadersContinue()]),
        (0.3, Cut(NotPicked(429, "preempted", "Later.", 2)), [Ignored(Cut, "RESPONSE")]),
        (0.4, Closed(), [StartTimer(None), Release("p")]),
    ],
    "an exchange that never ends is released": [
        (0.0, RequestHeaders(GET, True), [Pick(GET, b"")]),
        (0.1, Picked(TWO, "p"), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (3600.1, DeadlinePassed(), [Release("p"), Finish()]),
        (3600.2, Closed(), [Ignored(Closed, "ENDED")]),
    ],
    "a response body in full duplex is handed back": [
        (0.0, RequestHeaders(GET, True, response_mode=FULL), [Pick(GET, b"")]),
        (0.1, Picked(TWO), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (0.2, ResponseHeaders(200), [SendResponseHeadersContinue()]),
        (0.3, ResponseBody(b"data: 1", False), [SendResponseBodyPiece(b"data: 1", False)]),
        (0.4, ResponseBody(b"", True), [SendResponseBodyPiece(b"", True)]),
    ],
    "a response body in another mode is let pass": [
        (0.0, RequestHeaders(GET, True, response_mode=BodyMode.STREAMED), [Pick(GET, b"")]),
        (0.1, Picked(TWO), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (0.3, ResponseBody(b"data: 1", False), [SendResponseBodyContinue()]),
    ],
    "the end of a whole response body is told once": [
        (0.0, RequestHeaders(GET, True, response_mode=FULL), [Pick(GET, b"")]),
        (0.1, Picked(TWO, "p"), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (0.3, ResponseBody(b'{"usage"', False), [SendResponseBodyPiece(b'{"usage"', False)]),
        (0.4, ResponseBody(b":1}", True), [Answered("p", b'{"usage":1}'), SendResponseBodyPiece(b":1}", True)]),
        (0.5, ResponseTrailers(), [SendResponseTrailersContinue()]),
        (0.6, Closed(), [StartTimer(None), Release("p")]),
    ],
    "the end of a response body that trailers end is told then": [
        (0.0, RequestHeaders(GET, True, response_mode=BodyMode.STREAMED), [Pick(GET, b"")]),
        (0.1, Picked(TWO, "p"), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (0.3, ResponseBody(b"x" * 9000 + b"y", False), [SendResponseBodyContinue()]),
        (0.4, ResponseTrailers(), [Answered("p", b"x" * 4095 + b"y"), SendResponseTrailersContinue()]),
        (0.5, Closed(), [StartTimer(None), Release("p")]),
    ],
    "a response that breaks off tells that, and nothing else": [
        (0.0, RequestHeaders(GET, True, response_mode=BodyMode.STREAMED), [Pick(GET, b"")]),
        (0.1, Picked(TWO, "p"), [StartTimer(3600.1), SendHeadersPick(TWO)]),
        (0.3, ResponseBody(b"x", False), [SendResponseBodyContinue()]),
        (0.4, Closed(), [StartTimer(None), Release("p", is_unfinished=True)]),
    ],
    "when a request began is when its headers came": [
        (0.5, RequestHeaders(POST), [StartTimer(30.5), SendHeadersContinue()]),
        (0.9, RequestBody(b"{}"), [StartTimer(None), Pick(POST, b"{}", began_at=0.5)]),
    ],
    "a stream that begins in the middle is answered where it can be": [
        (0.0, RequestBody(b"{}"), [Ignored(RequestBody, "HEADERS")]),
        (0.1, ResponseHeaders(200), [StartTimer(None), SendResponseHeadersContinue()]),
    ],
}  # fmt: skip
