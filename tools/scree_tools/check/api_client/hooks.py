"""Hooks of schemathesis for this API (SCHEMATHESIS_HOOKS; tools/run check api)."""

import schemathesis

# A call that waits is made as any other, but is not waited for.
WAIT_S_MAX = 1


@schemathesis.hook
def before_call(context, case, kwargs):
    """Shortens permitted waits. Turns dry runs of deletions into real ones: schemathesis takes a
    dry run for a deletion, and the existing resource for an error."""
    if case.method == "DELETE" and case.query:
        case.query.pop("dry_run", None)
    try:
        wait = int((case.query or {})["wait"])
    except (KeyError, TypeError, ValueError):
        return
    if WAIT_S_MAX < wait <= 300:
        case.query["wait"] = WAIT_S_MAX
