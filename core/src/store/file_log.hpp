// SPDX-License-Identifier: Apache-2.0
//
// The file of a file store: a header, then one record per change, appended under an exclusive flock. The lock belongs
// to the open file description: it also works between two stores of one process, and the kernel releases it when a
// process dies. If a process dies during an append, the record does not match its length or checksum, and the next
// writer truncates it.
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
  // the file is not a store of this user.
  explicit FileLog(std::string path);
  ~FileLog();
  FileLog(const FileLog&) = delete;
  FileLog& operator=(const FileLog&) = delete;

  // False if another open file holds the lock.
  bool try_lock();
  void unlock() noexcept;
  // Whether there are records that catch_up has not read.
  bool grown() const;
  // The number of bytes read or appended; changes when the table does.
  off_t applied() const { return offset_; }
  // Applies the records that were added since the last call.
  void catch_up(Table& table);
  // Appends a change; call catch_up first. A failed append leaves the file unchanged.
  void append_set(std::string_view key, std::string_view value);
  void append_remove(std::string_view key);

  const std::string& path() const { return path_; }

 private:
  enum class Change : unsigned char { kSet = 1, kRemove = 2 };

  void open_file();
  off_t size() const;
  void check_header(off_t size);
  // False if the record at offset_ is incomplete.
  bool read_record(off_t size, Table& table);
  void apply(const std::string& body, Table& table) const;
  void append(Change change, std::string_view key, std::string_view value);
  void write_at(off_t offset, std::string_view bytes);
  void read_at(off_t offset, char* bytes, size_t count) const;
  void truncate(off_t size);
  [[noreturn]] void fail_io(const char* what, int error) const;
  [[noreturn]] void fail_damaged() const;

  const std::string path_;
  int fd_ = -1;
  off_t offset_ = 0;  // all records before it are applied
};

}  // namespace backplane::core
