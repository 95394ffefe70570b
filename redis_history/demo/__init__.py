"""The main job, shown and checked: many agents write into shared conversations while a subscriber follows.

`python -m redis_history.demo` starts agent processes that replay transcripts, kills one of them on the way, cuts the
subscriber's connection, repeats appends on purpose, and then compares everything that was stored and told with the
input. It ends with a table, and with exit status 1 if anything is missing, doubled, changed or out of order.
"""
