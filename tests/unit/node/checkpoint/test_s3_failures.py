"""What a failed request to S3 means, from the texts that the library makes of real replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.s3_failures import Meaning, failure_of

HTTP = "Generic S3 error: Error performing GET http://h/b/k in 2ms - Server returned non-2xx status code: {}: {}"


def answered(status: str, code: str = "") -> Exception:
    body = f"<Error><Code>{code}</Code><StringToSign>hush</StringToSign></Error>" if code else ""
    return RuntimeError(HTTP.format(status, body))


def broken(kind: str) -> Exception:
    return RuntimeError(f"Generic S3 error: HTTP error: error sending request\n\nHttpError {{\n    kind: {kind},\n")


@pytest.mark.parametrize(
    ("error", "meaning", "reason"),
    [
        (answered("503 Service Unavailable", "SlowDown"), Meaning.TRY_AGAIN, "asks for fewer requests (503 SlowDown)"),
        (answered("429 Too Many Requests"), Meaning.TRY_AGAIN, "asks for fewer requests (429)"),
        (answered("500 Internal Server Error", "InternalError"), Meaning.TRY_AGAIN, "failed (500 InternalError)"),
        (answered("400 Bad Request", "ExpiredToken"), Meaning.REFUSED, "have expired (400 ExpiredToken)"),
        (answered("400 Bad Request"), Meaning.REFUSED, "have expired (400)"),
        (answered("400 Bad Request", "InvalidArgument"), Meaning.FINAL, "answered 400 InvalidArgument"),
        (answered("403 Forbidden", "AccessDenied"), Meaning.REFUSED, "refuses the credentials"),
        (answered("403 Forbidden"), Meaning.REFUSED, "refuses the credentials"),
        (answered("401 Unauthorized"), Meaning.REFUSED, "refuses the credentials"),
        (answered("404 Not Found", "NoSuchBucket"), Meaning.FINAL, "no such bucket (404 NoSuchBucket)"),
        (answered("301 Moved Permanently", "PermanentRedirect"), Meaning.FINAL, "answered 301 PermanentRedirect"),
        (broken("Connect"), Meaning.TRY_AGAIN, "no connection to the store"),
        (broken("Timeout"), Meaning.TRY_AGAIN, "did not answer in time"),
        (broken("Interrupted"), Meaning.TRY_AGAIN, "broke (Interrupted)"),
        (RuntimeError("PUT http://127.0.0.1:9/latest/api/token: kind: Connect,"), Meaning.REFUSED, "no credentials"),
        (RuntimeError("kind: Builder, source: BadScheme"), Meaning.FINAL, "no https:// URL"),
    ],
)
def test_a_failure_says_what_follows_from_it(error: Exception, meaning: Meaning, reason: str) -> None:
    failure = failure_of(error)
    assert failure.meaning is meaning
    assert reason in failure.reason
    assert failure.fix
    assert "hush" not in failure.reason + failure.fix


@given(st.text())
def test_any_text_has_a_meaning_and_is_not_repeated(text: str) -> None:
    failure = failure_of(ValueError(f"secret-{text}-secret"))
    assert f"secret-{text}-secret" not in failure.reason
