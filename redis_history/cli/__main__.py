from redis_history.cli import main

main()
