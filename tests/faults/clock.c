/* A library that is loaded before a server: its clock is off by the microseconds in the file CLOCK_OFFSET_FILE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
static volatile long long *off = 0; /* microseconds */
static int (*real_gtod)(struct timeval *, void *) = 0;
static int (*real_cg)(clockid_t, struct timespec *) = 0;
__attribute__((constructor)) static void init(void) {
  real_gtod = dlsym(RTLD_NEXT, "gettimeofday"); real_cg = dlsym(RTLD_NEXT, "clock_gettime");
  const char *p = getenv("CLOCK_OFFSET_FILE"); if (!p) return;
  int fd = open(p, O_RDWR); if (fd < 0) return;
  off = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0); close(fd); if (off == MAP_FAILED) off = 0;
}
int gettimeofday(struct timeval *tv, void *tz) {
  if (!real_gtod) init(); int r = real_gtod(tv, tz);
  if (off) { long long t = tv->tv_sec * 1000000LL + tv->tv_usec + *off; tv->tv_sec = t / 1000000; tv->tv_usec = t % 1000000; } return r; }
int clock_gettime(clockid_t c, struct timespec *ts) {
  if (!real_cg) init(); int r = real_cg(c, ts);
  if (off && c == CLOCK_REALTIME) { long long t = ts->tv_sec * 1000000000LL + ts->tv_nsec + *off * 1000; ts->tv_sec = t / 1000000000; ts->tv_nsec = t % 1000000000; } return r; }
time_t time(time_t *out) { struct timeval tv; gettimeofday(&tv, 0); if (out) *out = tv.tv_sec; return tv.tv_sec; }
