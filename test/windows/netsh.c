/*
 * A stand-in for netsh.exe under Wine: sends its arguments to the test at 127.0.0.1:NETSH_PORT, one per line, and ends as the answer says.
 * The first line of the answer is the exit code, the rest is what netsh prints. test/windows/netsh-server.ts judges the arguments.
 */
#include <winsock2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what) {
  printf("netsh stand-in: %s\n", what);
  return 70;
}

int main(int argc, char **argv) {
  WSADATA data;
  const char *port = getenv("NETSH_PORT");
  if (port == NULL) return fail("NETSH_PORT is not set");
  if (WSAStartup(MAKEWORD(2, 2), &data) != 0) return fail("no sockets");
  SOCKET server = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {0};
  address.sin_family = AF_INET;
  address.sin_port = htons((unsigned short)atoi(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(server, (struct sockaddr *)&address, sizeof address) != 0) return fail("the test does not answer");
  for (int i = 1; i < argc; i++) {
    send(server, argv[i], (int)strlen(argv[i]), 0);
    send(server, "\n", 1, 0);
  }
  shutdown(server, SD_SEND);
  char answer[4096];
  int length = 0, more;
  while ((more = recv(server, answer + length, (int)sizeof answer - 1 - length, 0)) > 0) length += more;
  answer[length] = 0;
  closesocket(server);
  char *text = strchr(answer, '\n');
  if (text == NULL) return fail("the test gave no answer");
  fputs(text + 1, stdout);
  fflush(stdout);
  return atoi(answer);
}
