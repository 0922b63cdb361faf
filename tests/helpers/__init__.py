"""What tests share: miniature heads, models and stores, servers, engines that fail."""
