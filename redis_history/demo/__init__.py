"""The main job, shown and checked: many agents write into shared conversations while a subscriber follows, and a
compressor puts summaries in place of what is old.

`python -m redis_history.demo` starts agent processes that replay transcripts, kills one of them on the way, and the
compressor, cuts the subscriber's connection, repeats appends on purpose, and then compares everything that was stored
and told with the input. It ends with a table, and with exit status 1 if anything is missing, doubled, changed, torn or
out of order.
"""
