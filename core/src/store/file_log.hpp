// SPDX-License-Identifier: Apache-2.0
//
// The file behind a file store: a header, then one record per change, appended under an exclusive lock of the file. The
// lock is flock's, which belongs to the open file: it also works between two stores of one process, and the kernel
// releases it when a process dies. What a process that died in the middle of an append left at the end does not match
// its length or checksum, and the next one that holds the lock cuts it off.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "store/table.hpp"

namespace backplane::core {

// Not synchronised. All but the constructor and grown() need the lock.
class FileLog {
 public:
  // Creates the file (0600) if it is missing. BP_RESOURCE with the path and the reason if it cannot; BP_INVALID if
  // there is something else than a store of this user.
  explicit FileLog(std::string path);
  ~FileLog();
  FileLog(const FileLog&) = delete;
  FileLog& operator=(const FileLog&) = delete;

  // False if another open file holds the lock.
  bool try_lock();
  void unlock() noexcept;
  // Is there something that catch_up has not read?
  bool grown() const;
  // Bytes that have been read or appended: changes when the table does.
  off_t applied() const { return offset_; }
  // Applies the records that came since the last call.
  void catch_up(Table& table);
  // Appends a change; call catch_up first. A failed append leaves nothing behind.
  void append_set(std::string_view key, std::string_view value);
  void append_remove(std::string_view key);

  const std::string& path() const { return path_; }

 private:
  enum class Change : unsigned char { kSet = 1, kRemove = 2 };

  void open_file();
  off_t size() const;
  void check_header(off_t size);
  // False if the record at offset_ is torn.
  bool read_record(off_t size, Table& table);
  void apply(const std::string& body, Table& table) const;
  void append(Change change, std::string_view key, std::string_view value);
  void write_at(off_t offset, std::string_view bytes);
  void read_at(off_t offset, char* bytes, size_t count) const;
  void cut(off_t size);
  [[noreturn]] void fail_io(const char* what, int error) const;
  [[noreturn]] void fail_damaged() const;

  const std::string path_;
  int fd_ = -1;
  off_t offset_ = 0;  // all before it has been applied
};

}  // namespace backplane::core
