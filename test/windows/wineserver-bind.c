/*
 * Preloaded into the server of Wine, which opens all sockets. It binds a UDP socket to the device of an IPv4 address and to 0.0.0.0, so
 * that only one socket of a device can have a port, and its answers have another source. If the kernel does not let it, it binds to the
 * address itself, as Windows does.
 */
extern long syscall(long number, ...);
extern int *__errno_location(void);

int setsockopt(int fd, int level, int name, const void *value, unsigned length) {
  const int SOL_IP = 0, IP_UNICAST_IF = 50, SOL_SOCKET = 1, SO_BINDTODEVICE = 25, EPERM = 1, SYS_setsockopt = 54;
  if ((level == SOL_SOCKET && name == SO_BINDTODEVICE) || (level == SOL_IP && name == IP_UNICAST_IF)) {
    *__errno_location() = EPERM;
    return -1;
  }
  return (int)syscall(SYS_setsockopt, fd, level, name, value, length);
}
