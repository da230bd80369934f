"""What schemathesis is told of this API (SCHEMATHESIS_HOOKS; tools/run check api)."""

import schemathesis

# A call that waits is made as any other, but is not waited for.
WAIT_S_MAX = 1


@schemathesis.hook
def before_call(context, case, kwargs):
    """Waits briefly, where a wait that is allowed was asked for. Deletes for real: schemathesis
    takes a deletion that is only tried for one, and what is still there for a mistake."""
    if case.method == "DELETE" and case.query:
        case.query.pop("dry_run", None)
    try:
        wait = int((case.query or {})["wait"])
    except (KeyError, TypeError, ValueError):
        return
    if WAIT_S_MAX < wait <= 300:
        case.query["wait"] = WAIT_S_MAX
