/*
 * Sends a console event to every process of a program: console-event.exe PROGRAM EVENT
 *
 * Windows delivers such an event by a new thread in the process that starts at CtrlRoutine, and so does this. Wine 8 itself can only send
 * Ctrl-C, and ends the processes of a console that is closed without an event.
 */
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <tlhelp32.h>

int main(int argc, char **argv) {
  LPTHREAD_START_ROUTINE routine = (void *)GetProcAddress(GetModuleHandleA("kernelbase"), "CtrlRoutine");
  HANDLE all = CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0);
  PROCESSENTRY32 entry = {sizeof entry};
  int sent = 0;
  if (argc != 3 || routine == NULL) return 1;
  for (BOOL more = Process32First(all, &entry); more; more = Process32Next(all, &entry)) {
    if (lstrcmpiA(entry.szExeFile, argv[1]) != 0) continue;
    HANDLE process = OpenProcess(PROCESS_ALL_ACCESS, FALSE, entry.th32ProcessID);
    if (CreateRemoteThread(process, NULL, 0, routine, (void *)(INT_PTR)atoi(argv[2]), 0, NULL) != NULL) sent++;
  }
  printf("%d\n", sent);
  return 0;
}
