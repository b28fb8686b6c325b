// SPDX-License-Identifier: Apache-2.0
//
// Debian's libgloo-dev leaves out gloo/common/memory.h, which gloo's TCP headers include. These are declarations with
// the names and the layout of those inside libgloo.so 0.5 (soname libgloo.so.0), used only where that header is
// missing.
//
// The user owns an unbound buffer. Its operations hold weak pointers to it, and gloo's thread a strong one while it
// uses the buffer; the destructor waits until those are released.
#pragma once

#include <memory>
#include <thread>

namespace gloo {

template <typename T>
class NonOwningPtr;
template <typename T>
class WeakNonOwningPtr;

// The root: a member of the object.
template <typename T>
class ShareableNonOwningPtr final {
 public:
  explicit ShareableNonOwningPtr(T* object) : ptr_(object, [](void*) {}) {}
  ShareableNonOwningPtr(const ShareableNonOwningPtr&) = delete;
  ShareableNonOwningPtr& operator=(const ShareableNonOwningPtr&) = delete;
  ~ShareableNonOwningPtr() {
    const std::weak_ptr<T> users(ptr_);
    ptr_.reset();
    while (!users.expired()) std::this_thread::yield();
  }

 private:
  std::shared_ptr<T> ptr_;
  friend class WeakNonOwningPtr<T>;
};

// The pointer of an operation.
template <typename T>
class WeakNonOwningPtr final {
 public:
  WeakNonOwningPtr() = default;
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& root) : ptr_(root.ptr_) {}

  // True if it was ever made from a root, even if the object has been destroyed.
  explicit operator bool() const noexcept {
    const std::weak_ptr<T> none;
    return ptr_.owner_before(none) || none.owner_before(ptr_);
  }

 private:
  std::weak_ptr<T> ptr_;
  friend class NonOwningPtr<T>;
};

// A short-lived use; null if the object has been destroyed.
template <typename T>
class NonOwningPtr final {
 public:
  NonOwningPtr() = default;
  explicit NonOwningPtr(const WeakNonOwningPtr<T>& weak) : ptr_(weak.ptr_.lock()) {}

  T* operator->() const noexcept { return ptr_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(ptr_); }

 private:
  std::shared_ptr<T> ptr_;
};

}  // namespace gloo
