// SPDX-License-Identifier: Apache-2.0
#include "store/file_log.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/crc.hpp>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "error.hpp"
#include "security/secret.hpp"
#include "store/store.hpp"
#include "store/wire.hpp"

namespace backplane::core {
namespace {

constexpr std::string_view kHeader = "backplane store 2\n";
constexpr size_t kHeaderSize = kHeader.size() + sizeof(uint64_t);  // then the offset of the first record in use
constexpr off_t kMinCompaction = off_t{64} << 10;                  // bytes of records
constexpr size_t kFrameSize = 8;  // a record begins with the size and the checksum of its body, 4 bytes each
constexpr size_t kMaxBodySize = kMaxKeySize + kMaxValueSize + 64;

uint32_t checksum(std::string_view bytes) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

}  // namespace

FileLog::FileLog(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a FIFO is refused below instead of blocking.
  fd_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!fd_) fail_io("open", errno);
  struct stat info = {};
  if (::fstat(fd_.get(), &info) != 0) fail_io("stat", errno);
  if (!S_ISREG(info.st_mode)) fail(BP_INVALID, "{} is not a regular file; use another path", path_);
  // The owner of the file controls the store.
  if (info.st_uid != ::geteuid() && ::geteuid() != 0) {
    fail(BP_INVALID, "the store {} belongs to user {}, this process to user {}; choose another path", path_,
         info.st_uid, ::geteuid());
  }
  // The only protection of a file store is the mode of its file.
  if ((info.st_mode & 077) != 0 && !secret_variable().empty()) {
    fail(BP_INVALID,
         "the store {} is open to other users (mode {:04o}), and the job has a secret; chmod 600 it, or "
         "choose another path",
         path_, info.st_mode & 07777);
  }
}

bool FileLog::try_lock() {
  while (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail_io("lock", errno);
  }
  return true;
}

void FileLog::unlock() noexcept { ::flock(fd_.get(), LOCK_UN); }

bool FileLog::grown() const { return size() != offset_ || offset_ == 0; }

off_t FileLog::size() const {
  struct stat info = {};
  if (::fstat(fd_.get(), &info) != 0) fail_io("stat", errno);
  return info.st_size;
}

void FileLog::catch_up(Table& table) {
  if (offset_ == 0) check_header(size());
  const off_t end = size();
  begin_ = read_begin();
  if (end < offset_ || end < begin_) fail_damaged();
  if (offset_ < begin_) {
    table.clear();
    offset_ = begin_;
  }
  while (offset_ < end) {
    if (!read_record(end, table)) {
      truncate(offset_);
      return;
    }
  }
}

void FileLog::check_header(off_t end) {
  const size_t held = std::min(kHeader.size(), static_cast<size_t>(end));
  std::string header(held, '\0');
  read_at(0, header.data(), held);
  if (header != kHeader.substr(0, held)) {
    fail(BP_INVALID, "{} is not a store of this version of Backplane; use another path", path_);
  }
  if (static_cast<size_t>(end) < kHeaderSize) {
    write_at(0, kHeader);
    write_begin(kHeaderSize);
  }
  offset_ = static_cast<off_t>(kHeaderSize);
}

off_t FileLog::read_begin() const {
  std::string bytes(sizeof(uint64_t), '\0');
  read_at(static_cast<off_t>(kHeader.size()), bytes.data(), bytes.size());
  const uint64_t begin = Unpacker(bytes).u64();
  if (begin < kHeaderSize || begin > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) fail_damaged();
  return static_cast<off_t>(begin);
}

void FileLog::write_begin(uint64_t begin) {
  Packer bytes;
  bytes.u64(begin);
  write_at(static_cast<off_t>(kHeader.size()), bytes.bytes());
}

bool FileLog::read_record(off_t end, Table& table) {
  const auto left = static_cast<size_t>(end - offset_);
  if (left < kFrameSize) return false;
  std::string frame(kFrameSize, '\0');
  read_at(offset_, frame.data(), frame.size());
  Unpacker fields(frame);
  const size_t count = fields.u32();
  const uint32_t sum = fields.u32();
  if (count == 0 || count > left - kFrameSize) return false;
  if (count > kMaxBodySize) fail_damaged();
  std::string body(count, '\0');
  read_at(offset_ + static_cast<off_t>(kFrameSize), body.data(), count);
  if (checksum(body) != sum) {
    if (count == left - kFrameSize) return false;
    fail_damaged();  // not the last record: no crash of a writer explains it
  }
  apply(body, table);
  offset_ += static_cast<off_t>(kFrameSize + count);
  return true;
}

void FileLog::apply(const std::string& body, Table& table) const {
  Unpacker fields(body);
  const auto change = static_cast<Change>(fields.u8());
  const std::string_view key = fields.text();
  const std::string_view value = fields.text();
  if (!fields.complete()) fail_damaged();
  if (change == Change::kSet) {
    table.set(key, make_bytes(std::string(value)));
  } else if (change == Change::kRemovePrefix) {
    table.remove_prefix(key);
  } else {
    table.remove(key);
  }
}

void FileLog::append_set(std::string_view key, std::string_view value) { append(record_of(Change::kSet, key, value)); }

void FileLog::append_remove(std::string_view key) { append(record_of(Change::kRemove, key, {})); }

void FileLog::append_remove_prefix(std::string_view prefix) { append(record_of(Change::kRemovePrefix, prefix, {})); }

std::string FileLog::record_of(Change change, std::string_view key, std::string_view value) {
  Packer body;
  body.u8(static_cast<uint8_t>(change)).text(key).text(value);
  Packer record;
  record.u32(static_cast<uint32_t>(body.bytes().size())).u32(checksum(body.bytes())).raw(body.bytes());
  return record.bytes();
}

void FileLog::append(std::string_view records) {
  try {
    write_at(offset_, records);
  } catch (const Error&) {
    truncate(offset_);
    throw;
  }
  offset_ += static_cast<off_t>(records.size());
}

void FileLog::compact(const Table& table) {
  if (offset_ - begin_ < kMinCompaction) return;
  size_t bytes = 0;
  table.for_each([&bytes](const std::string& key, const std::string& value) { bytes += key.size() + value.size(); });
  if (bytes > static_cast<size_t>(offset_ - begin_) / 4) return;
  std::string records;
  table.for_each(
      [&records](const std::string& key, const std::string& value) { records += record_of(Change::kSet, key, value); });
  const off_t begin = offset_;
  try {
    append(records);
    write_begin(static_cast<uint64_t>(begin));
    begin_ = begin;
  } catch (const Error&) {
    return;  // the disk is full: the log without compaction is complete
  }
  // Some file systems cannot; the records are then skipped all the same.
  static_cast<void>(::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(kHeaderSize),
                                begin - static_cast<off_t>(kHeaderSize)));
}

void FileLog::write_at(off_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_io("write", errno);
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
}

void FileLog::read_at(off_t offset, char* bytes, size_t count) const {
  while (count > 0) {
    const ssize_t got = ::pread(fd_.get(), bytes, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io("read", errno);
    if (got == 0) fail_damaged();  // it shrank although this process holds the lock
    bytes += got;
    offset += got;
    count -= static_cast<size_t>(got);
  }
}

void FileLog::truncate(off_t size) {
  while (::ftruncate(fd_.get(), size) != 0) {
    if (errno != EINTR) fail_io("truncate", errno);
  }
}

void FileLog::fail_io(const char* what, int error) const {
  throw Error(BP_RESOURCE,
              fmt::format("cannot {} the store {}: {}", what, path_, std::generic_category().message(error)), -1,
              error);
}

void FileLog::fail_damaged() const {
  fail(BP_RESOURCE, "the store {} was damaged by another program at byte {}; remove it and restart the job", path_,
       offset_);
}

}  // namespace backplane::core
