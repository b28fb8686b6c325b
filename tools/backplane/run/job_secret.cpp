// SPDX-License-Identifier: Apache-2.0
#include "run/job_secret.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/failure.hpp"

namespace backplane::tool {
namespace {

constexpr const char* kFileVariable = "BACKPLANE_SECRET_FILE";
constexpr const char* kDescriptorVariable = "BACKPLANE_SECRET_FD";
constexpr size_t kRandomBytes = 32;
constexpr int kLowestNumber = 10;  // lower ones are used by programs of ranks, such as kReplyDescriptor

// Hexadecimal, so that an accidental print contains no control characters.
void write_random_text(int fd) {
  std::array<unsigned char, kRandomBytes> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    fail_system("cannot create the job's secret: getrandom");
  }
  std::array<char, 2 * kRandomBytes> text{};
  for (size_t i = 0; i < random.size(); ++i) {
    text[2 * i] = "0123456789abcdef"[random[i] >> 4];
    text[2 * i + 1] = "0123456789abcdef"[random[i] & 15];
  }
  const ssize_t written = ::write(fd, text.data(), text.size());
  ::explicit_bzero(random.data(), random.size());
  ::explicit_bzero(text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) fail_system("cannot create a memory file for the job's secret");
}

}  // namespace

void use_secret_file(const std::string& path) {
  ::setenv(kFileVariable, path.c_str(), 1);
  ::unsetenv(kDescriptorVariable);
}

base::Descriptor create_secret() {
  const base::Descriptor made(::memfd_create("backplane-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made) fail_system("cannot create a memory file for the job's secret");
  base::Descriptor secret(::fcntl(made.get(), F_DUPFD_CLOEXEC, kLowestNumber));
  if (!secret) fail_system("cannot duplicate the descriptor of the job's secret");
  write_random_text(secret.get());
  if (::fcntl(secret.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    fail_system("cannot seal the job's secret");
  }
  ::setenv(kDescriptorVariable, std::to_string(secret.get()).c_str(), 1);
  ::unsetenv(kFileVariable);
  return secret;
}

}  // namespace backplane::tool
