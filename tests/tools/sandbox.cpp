// SPDX-License-Identifier: Apache-2.0
//
// sandbox PROGRAM [ARGUMENT]...: runs the program under a seccomp filter that refuses process_vm_readv.
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/system_calls.hpp"

int main(int count, char** arguments) {
  if (count < 2 || !backplane::test::answer_with(SECCOMP_RET_ERRNO | EPERM, SYS_process_vm_readv)) return 1;
  ::execv(arguments[1], arguments + 1);
  return 1;
}
