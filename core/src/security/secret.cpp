// SPDX-License-Identifier: Apache-2.0
#include "security/secret.hpp"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "backplane/base/descriptor.hpp"
#include "environment.hpp"
#include "error.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr const char* kFileVariable = "BACKPLANE_SECRET_FILE";
constexpr const char* kDescriptorVariable = "BACKPLANE_SECRET_FD";
constexpr std::string_view kSecretPurpose = "backplane job secret 1";

// A buffer for a secret, with room for the newline and one byte more, to detect longer ones. Erased at the end.
struct SecretBytes {
  SecretBytes() = default;
  ~SecretBytes() { ::sodium_memzero(bytes.data(), bytes.size()); }
  SecretBytes(const SecretBytes&) = delete;
  SecretBytes& operator=(const SecretBytes&) = delete;

  std::array<char, kMaxSecretSize + 2> bytes{};
  size_t size = 0;
};

std::string reason(int number) { return std::generic_category().message(number); }

// By pread: the offset of an inherited descriptor is shared.
std::shared_ptr<const Secret> read_secret(int fd, const std::string& where) {
  SecretBytes read;
  while (read.size < read.bytes.size()) {
    const ssize_t got =
        ::pread(fd, read.bytes.data() + read.size, read.bytes.size() - read.size, static_cast<off_t>(read.size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(BP_INVALID, "cannot read the job's secret from {}: {}", where, reason(errno));
    if (got == 0) break;
    read.size += static_cast<size_t>(got);
  }
  return std::make_shared<const Secret>(std::string_view(read.bytes.data(), read.size), where);
}

std::shared_ptr<const Secret> read_secret_file(const std::string& path) {
  const std::string where = fmt::format("{} ({})", quoted(path), kFileVariable);
  // O_NONBLOCK: a FIFO is refused below instead of blocking.
  const base::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail(BP_INVALID, "cannot open the job's secret {}: {}", where, reason(errno));
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) fail(BP_INVALID, "cannot examine the job's secret {}: {}", where, reason(errno));
  if (!S_ISREG(info.st_mode)) {
    fail(BP_INVALID, "the job's secret {} is not a regular file; name a file that holds it", where);
  }
  if (info.st_uid != ::geteuid()) {
    fail(BP_INVALID,
         "the job's secret {} belongs to user {}, this process to user {}; use a file that belongs to this user", where,
         info.st_uid, ::geteuid());
  }
  if ((info.st_mode & 077) != 0) {
    fail(BP_INVALID,
         "the job's secret {} is open to other users (mode {:04o}); create a new secret in a file of mode 0600", where,
         info.st_mode & 07777);
  }
  return read_secret(file.get(), where);
}

std::shared_ptr<const Secret> read_secret_descriptor(int fd) {
  const std::string where = fmt::format("descriptor {} ({})", fd, kDescriptorVariable);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    fail(BP_INVALID, "the job's secret should be in {}, which is not open; let this process inherit the descriptor",
         where);
  }
  if (!S_ISREG(info.st_mode)) {
    fail(BP_INVALID,
         "the job's secret cannot be read from {}, which is not a regular file; open a regular file or a memfd there",
         where);
  }
  return read_secret(fd, where);
}

}  // namespace

Key::~Key() { ::sodium_memzero(bytes_.data(), bytes_.size()); }

Secret::Secret(std::string_view bytes, const std::string& where) {
  if (::sodium_init() < 0) fail(BP_RESOURCE, "cannot initialise libsodium: the system provides no random numbers");
  if (!bytes.empty() && bytes.back() == '\n') bytes.remove_suffix(1);
  if (bytes.size() < kMinSecretSize || bytes.size() > kMaxSecretSize) {
    fail(BP_INVALID,
         "the job's secret in {} has {} bytes; use {} to {} random bytes (head -c 32 /dev/urandom | "
         "base64)",
         where,
         bytes.size() > kMaxSecretSize ? fmt::format("more than {}", kMaxSecretSize) : fmt::to_string(bytes.size()),
         kMinSecretSize, kMaxSecretSize);
  }
  ::crypto_generichash(key_.data(), kKeySize, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                       reinterpret_cast<const unsigned char*>(kSecretPurpose.data()), kSecretPurpose.size());
}

std::string secret_variable() {
  for (const char* name : {kFileVariable, kDescriptorVariable}) {
    if (name == kFileVariable ? trusted_variable(name) : variable(name)) return name;
  }
  return "";
}

std::string without_secret_advice() {
  const std::string name = secret_variable();
  // `backplane run --secure` passes the secret to its ranks in a descriptor.
  return name == kDescriptorVariable ? fmt::format("start the job without --secure (without {})", name)
                                     : "unset " + name;
}

std::shared_ptr<const Secret> environment_secret() {
  const auto path = trusted_variable(kFileVariable);
  const auto descriptor = variable(kDescriptorVariable);
  if (path && descriptor) fail(BP_INVALID, "{} and {} are both set; unset one", kFileVariable, kDescriptorVariable);
  if (path) return read_secret_file(*path);
  if (descriptor) {
    return read_secret_descriptor(static_cast<int>(parse_number(kDescriptorVariable, *descriptor, 0, INT32_MAX)));
  }
  return nullptr;
}

}  // namespace backplane::core
