/*
 * Runs a console program as a Windows service: sluice-service.exe LOG PROGRAM [ARGUMENT...]
 *
 * The output of the program is appended to the file LOG. A stop of the service, and a shutdown of the machine, reach the program as Ctrl-C;
 * a program that has not ended after 30 s is killed. If the program ends by itself, the service stops with its exit code. If this process
 * is killed, the program is killed, too. docs/windows.md says how to build and install it.
 */
#define _WIN32_WINNT 0x0602
#include <windows.h>

static const DWORD stop_limit_ms = 30000;
static const LONGLONG log_limit = 10 << 20;
static SERVICE_STATUS_HANDLE manager;
static HANDLE stop_event;

/* `program_code` is the exit code of the program; `error` is an error of Windows. */
static void report(DWORD state, DWORD error, DWORD program_code) {
  SERVICE_STATUS status = {SERVICE_WIN32_OWN_PROCESS};
  status.dwCurrentState = state;
  status.dwControlsAccepted = state == SERVICE_RUNNING ? SERVICE_ACCEPT_STOP | SERVICE_ACCEPT_SHUTDOWN : 0;
  status.dwWin32ExitCode = program_code == 0 ? error : ERROR_SERVICE_SPECIFIC_ERROR;
  status.dwServiceSpecificExitCode = program_code;
  if (state == SERVICE_START_PENDING) status.dwWaitHint = 10000;
  if (state == SERVICE_STOP_PENDING) status.dwWaitHint = stop_limit_ms + 5000;
  SetServiceStatus(manager, &status);
}

static DWORD WINAPI on_control(DWORD control, DWORD type, void *data, void *context) {
  if (control == SERVICE_CONTROL_STOP || control == SERVICE_CONTROL_SHUTDOWN) {
    SetEvent(stop_event);
    return NO_ERROR;
  }
  return control == SERVICE_CONTROL_INTERROGATE ? NO_ERROR : ERROR_CALL_NOT_IMPLEMENTED;
}

/* The program shares our console, so its Ctrl-C reaches this process, too. */
static BOOL WINAPI ignore_console(DWORD event) { return TRUE; }

/* Ends the argument at `text` with a zero, without its quotes, and returns the rest of the command line. */
static wchar_t *cut_argument(wchar_t **text) {
  wchar_t end = **text == L'"' ? L'"' : L' ';
  if (end == L'"') (*text)++;
  wchar_t *rest = *text;
  while (*rest != 0 && *rest != end) rest++;
  if (*rest != 0) *rest++ = 0;
  while (*rest == L' ') rest++;
  return rest;
}

/* A log of more than 10 MB is renamed to LOG.old first. */
static HANDLE open_log(const wchar_t *path) {
  WIN32_FILE_ATTRIBUTE_DATA file;
  wchar_t old[MAX_PATH + 8];
  if (GetFileAttributesExW(path, GetFileExInfoStandard, &file) &&
      (((LONGLONG)file.nFileSizeHigh << 32) | file.nFileSizeLow) > log_limit && lstrlenW(path) < MAX_PATH) {
    lstrcatW(lstrcpyW(old, path), L".old");
    MoveFileExW(path, old, MOVEFILE_REPLACE_EXISTING);
  }
  SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
  DWORD share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
  return CreateFileW(path, FILE_APPEND_DATA | SYNCHRONIZE, share, &inherited, OPEN_ALWAYS, FILE_ATTRIBUTE_NORMAL, NULL);
}

/* Processes of a job end with the last handle of the job, which is ours. */
static BOOL end_with_us(HANDLE process) {
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {0};
  limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
  HANDLE job = CreateJobObjectW(NULL, NULL);
  return SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits) &&
         AssignProcessToJobObject(job, process);
}

static BOOL start_program(wchar_t *command, HANDLE log, PROCESS_INFORMATION *program) {
  STARTUPINFOW startup = {sizeof startup};
  startup.dwFlags = STARTF_USESTDHANDLES;
  startup.hStdOutput = startup.hStdError = log;
  if (!CreateProcessW(NULL, command, NULL, NULL, TRUE, CREATE_SUSPENDED, NULL, NULL, &startup, program)) return FALSE;
  if (!end_with_us(program->hProcess)) {
    TerminateProcess(program->hProcess, 1);
    return FALSE;
  }
  return ResumeThread(program->hThread) != (DWORD)-1;
}

/* Returns the exit code of the program: 0 if it obeyed a stop. */
static DWORD wait_for_end(HANDLE program) {
  HANDLE events[] = {program, stop_event};
  DWORD code = 0;
  if (WaitForMultipleObjects(2, events, FALSE, INFINITE) == WAIT_OBJECT_0 + 1) {
    report(SERVICE_STOP_PENDING, NO_ERROR, 0);
    GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0);
    if (WaitForSingleObject(program, stop_limit_ms) != WAIT_OBJECT_0) TerminateProcess(program, ERROR_TIMEOUT);
    WaitForSingleObject(program, INFINITE);
  }
  GetExitCodeProcess(program, &code);
  return code;
}

static void WINAPI run_service(DWORD count, wchar_t **names) {
  manager = RegisterServiceCtrlHandlerExW(L"", on_control, NULL);
  report(SERVICE_START_PENDING, NO_ERROR, 0);
  stop_event = CreateEventW(NULL, TRUE, FALSE, NULL);
  /* Ctrl-C needs a console, which a service does not have; and a process may inherit that it ignores Ctrl-C. */
  AllocConsole();
  SetConsoleCtrlHandler(NULL, FALSE);
  SetConsoleCtrlHandler(ignore_console, TRUE);
  wchar_t *own = GetCommandLineW(), *path = cut_argument(&own), *command = cut_argument(&path);
  HANDLE log = open_log(path);
  PROCESS_INFORMATION program;
  if (log == INVALID_HANDLE_VALUE || !start_program(command, log, &program)) {
    report(SERVICE_STOPPED, GetLastError(), 0);
    return;
  }
  report(SERVICE_RUNNING, NO_ERROR, 0);
  report(SERVICE_STOPPED, NO_ERROR, wait_for_end(program.hProcess));
}

int main(void) {
  SERVICE_TABLE_ENTRYW table[] = {{L"", run_service}, {NULL, NULL}};
  return StartServiceCtrlDispatcherW(table) ? 0 : (int)GetLastError();
}
