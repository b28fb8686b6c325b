// SPDX-License-Identifier: Apache-2.0
#include "plugin/plugin_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "backplane/base/descriptor.hpp"
#include "error.hpp"
#include "plugin/elf_file.hpp"
#include "plugin/reject.hpp"
#include "plugin/trusted_path.hpp"

namespace backplane::core::plugin {
namespace {

constexpr uint64_t kMaxFileSize = uint64_t{16} << 30;  // bytes; fat GPU libraries reach a few GiB

class FileSource final : public base::ByteSource {
 public:
  FileSource(base::Descriptor fd, uint64_t size) : fd_(std::move(fd)), size_(size) {}

  uint64_t size() const override { return size_; }

  // pread and no mapping: a file that shrinks is an error here, not a SIGBUS.
  void read(uint64_t offset, std::span<std::byte> into) const override {
    while (!into.empty()) {
      const ssize_t got = ::pread(fd_.get(), into.data(), into.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_errno("it cannot be read", errno);
      if (got == 0) reject(kDamaged, "it shrank while it was being read");
      offset += static_cast<uint64_t>(got);
      into = into.subspan(static_cast<size_t>(got));
    }
  }

 private:
  base::Descriptor fd_;
  uint64_t size_;
};

void check_regular(const struct stat& status) {
  switch (status.st_mode & S_IFMT) {
    case S_IFREG:
      return;
    case S_IFDIR:
      reject(kNoPlugin, "it is a directory");
    case S_IFIFO:
      reject(kNoPlugin, "it is a FIFO, not a regular file");
    case S_IFSOCK:
      reject(kNoPlugin, "it is a socket, not a regular file");
    default:
      reject(kNoPlugin, "it is a device, not a regular file");
  }
}

FileId id_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size),
          int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec};
}

}  // namespace

Note read_plugin_file(const std::string& path, bool allow_unsafe) {
  if (!allow_unsafe) check_trusted_path(path);
  struct stat status {};
  // Before open, because opening a FIFO or a device has effects.
  if (::stat(path.c_str(), &status) != 0) fail_errno("it cannot be examined", errno);
  check_regular(status);
  base::Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) fail_errno("it cannot be opened", errno);
  if (::fstat(fd.get(), &status) != 0) fail_errno("it cannot be examined", errno);
  check_regular(status);
  const FileSource file(std::move(fd), static_cast<uint64_t>(status.st_size));
  if (file.size() > kMaxFileSize) reject(kNoPlugin, "it is larger than {} bytes", kMaxFileSize);
  if (!allow_unsafe) check_trusted(status, "it");
  Note note = read_note(file);
  note.file = id_of(status);
  return note;
}

std::optional<FileId> identify(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return id_of(status);
}

}  // namespace backplane::core::plugin
