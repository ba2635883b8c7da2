"""Programs that outlive their process: found by what was captured, in place of planning and
generating code again."""
